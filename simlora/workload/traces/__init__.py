"""Recorded streams of requests: one file for each format, and what all of them share."""
