"""Minecraft beside the fleet: what runs in the process of an environment, under any interpreter from Python 3.8 on."""
