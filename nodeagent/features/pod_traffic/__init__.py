"""Whether the rails of each pod carry traffic: judged by the agent, and reported as a level that changes seldom."""
