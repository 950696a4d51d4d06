"""Training that survives anything: recipes, the loop, checkpoints, curricula, logs. It knows the protocol only."""
