"""The agent process that owns devices, its workers, the device drivers and the fleet."""
