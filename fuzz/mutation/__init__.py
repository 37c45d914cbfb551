"""Automatic mutation: small faults made in a kernel's source as it is loaded, to test the tester.

`operators` finds the mutants of a file, `gauntlet` is what each must survive to count as missed,
`worker` runs one in a process of its own, and `campaign` draws a sample and adds up.
docs/mutation.md tells what is mutated, what is not, and what came of it.
"""
