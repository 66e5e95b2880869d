"""Clusters over several hosts, whose processes are started and stopped over ssh."""
