"""Helpers for tests of code over a reader."""
