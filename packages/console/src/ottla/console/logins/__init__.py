"""Logins of people: roles and scopes, the file of users, sessions, OpenID Connect, guarded routes."""
