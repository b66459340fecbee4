// Package canary looks for secrets where none may be. Its test runs a cluster, gives it
// credentials of every kind (an account's API key, an OAuth access and refresh token, a
// key from the environment, an OAuth client's secret, the key-encryption key), has all
// of them used, renewed, quoted by providers wherever an answer can hold a key, refused
// and sealed with other keys, and then searches every place that is not the broker's
// memory: logs, every byte on every wire between two parts (the bus and the database
// among them), what the database and the bus have stored, API answers and errors, pages
// for operators, what commands print, traces, and the memory of all other processes.
//
// Each secret holds a mark that nothing else in the world has. A second mark, the leak,
// is put into each of these places on purpose: the search is worth something because
// it finds that one everywhere. That brokers' memory holds the first mark says the same
// of reading memory.
package canary
