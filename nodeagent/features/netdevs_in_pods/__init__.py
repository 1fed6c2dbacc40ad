"""The agent's side of netdevs in pods: the plan that `nodeagent attach` carries out."""
