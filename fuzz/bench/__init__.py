"""How fast: one step of a layer in its steady state, all peers in one run, beside the floor."""
