"""What statements share: parameters, the fence, requests, and the rows that they return."""
