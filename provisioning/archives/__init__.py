"""Unpack archives into trees and check every path."""
