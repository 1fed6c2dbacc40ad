"""The labels of GPU Feature Discovery as a feature file for Node Feature Discovery (NFD)."""
