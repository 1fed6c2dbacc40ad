"""Questions to switches, asked by the controller: their LLDP neighbors by SNMP or gNMI."""
