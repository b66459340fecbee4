// Package check holds what is in deploy/ and docker-compose.yml to its promises,
// with the libraries that Docker itself reads them with: compose-go and BuildKit's
// Dockerfile parser. It is a module of its own, so that these choose no version of
// the product's. There is only tests; they need no Docker, but the programs in bin/
// (make build), whose --help says which variables exist.
package check
