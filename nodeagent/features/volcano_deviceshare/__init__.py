"""The API half of Volcano's plugin deviceshare: annotations of this Node and of its pods."""
