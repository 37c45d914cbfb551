"""What happens around the kernels in a server: who is seated when, where, and beside whom.

`workload` says what arrives, `pool` who owns which slot, `scheduler` what is done in which order,
`statistics` what that comes to. No state is computed here: `events` are what a machine, or any
other implementation, has to be driven with.
"""
