"""Read the LLDP neighbors of switches by SNMP. Only the controller uses this."""
