"""SASL on the broker's side: its mechanisms, the logins of sessions, and the credentials of users."""
