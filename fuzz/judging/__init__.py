"""The differential walk: a history on a target, beside all who know what must come of it."""
