"""What checkpoints cost beside time: node-hours, money, energy, space, and the life of drives."""
