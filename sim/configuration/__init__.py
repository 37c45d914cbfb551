"""Which flags a server is started with, what it then does, and whether that is safe."""
