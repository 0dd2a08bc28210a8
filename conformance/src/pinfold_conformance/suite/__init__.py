"""`pytest --pyargs pinfold_conformance.suite --pinfold-target NAME`."""
