"""The wire: generated from protos/."""
