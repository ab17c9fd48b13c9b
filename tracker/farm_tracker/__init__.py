"""The one service of the farm: devices and leases, the store, the coordinator of builds."""
