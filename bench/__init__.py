"""Benchmarks: ratios against the physical floor and named peers, measured in the same run.

They never gate anything: a number is read by a person, beside the others of its run.
"""
