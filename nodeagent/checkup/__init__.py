"""How the devices do: asked of the agent that runs, or looked at for a moment, or replayed from recorded samples."""
