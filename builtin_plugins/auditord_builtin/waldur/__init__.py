"""Reports usage to Waldur: what each account and each user consumed in a billing period."""
