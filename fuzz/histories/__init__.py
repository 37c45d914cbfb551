"""What is walked: histories as traces, who tells them, and the numbers of their tokens."""
