"""SGLang's own pool, backend and commit as a target: worker processes and their adapter."""
