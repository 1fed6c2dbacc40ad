"""The language of settings files: a YAML tree with lines, validation, formats, a commented default and a JSON schema.

Each room declares its own settings from the words in ``setting``. ``nodeagent.agent_config`` and
``nodeagent.controller_config`` compose them to the two files. No setting is declared here.
"""
