"""What is spoken with the kubelet and the API server: messages and small clients, and no opinion."""
