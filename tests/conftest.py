"""Lets the test folders import the helper modules beside this file."""
