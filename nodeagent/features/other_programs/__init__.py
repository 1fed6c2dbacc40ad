"""Objects for other programs that follow the tree: Slurm, Node Feature Discovery, and people."""
