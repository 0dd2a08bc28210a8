"""The checks, by the part of the contract that they are about."""
