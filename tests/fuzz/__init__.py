"""Random functions, random schedules of them, and whether results stay: `make fuzz-compiler` runs it as a program."""
