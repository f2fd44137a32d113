"""`gateway certify`: does a server keep its protocol, and which clients work with it?"""
