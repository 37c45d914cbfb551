"""Many histories: campaigns, hunts and explorations, in processes that are watched."""
