"""Commands that need the simulator alone, one a module; `ringfold.fuzz.cli` registers them."""
