"""pinfold: sandboxed compute behind one contract."""
