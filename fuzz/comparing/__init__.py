"""One history twice: two targets, two releases, or one target told the same in another way."""
