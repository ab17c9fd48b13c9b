"""Small things that every room needs: digests, canonical JSON, clocks, ids, atomic files."""
