"""The simulator's verdict on configurations beside what a release makes of them."""
