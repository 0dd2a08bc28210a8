"""Sandboxed compute on any target, with one contract that every provider keeps."""
