"""Offloading: what a policy of placement over device, host and disk costs, and the policy that costs least."""
