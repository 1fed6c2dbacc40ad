"""Read the LLDP neighbors of switches by SNMP or gNMI. Only the controller uses this."""
