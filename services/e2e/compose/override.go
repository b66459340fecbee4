package main

import (
	"encoding/json"
	"os"
	"strings"

	"signalbox.dev/pkg/subject"

	"signalbox.dev/services/e2e/kill"
	"signalbox.dev/services/e2e/world"
)

// Addresses of containers that the tests connect to. The others get theirs from the upper half.
const (
	subnet           = "10.88.0.0/24"
	upperHalf        = "10.88.0.128/25"
	postgresAddress  = "10.88.0.10"
	simulatorAddress = "10.88.0.11"
)

// The far end is the service on this side that tools call.
const (
	farEndAddress = ":18090"
	farEndURL     = "http://host.docker.internal:18090"
)

type object = map[string]any

// writeOverride writes what the tests need besides docker-compose.yml: addresses that stay, tools
// whose effects are counted, limits above the load, and the simulator's script.
func (r *rig) writeOverride() error {
	scripts := r.file("scripts")
	if err := kill.WriteScript(scripts); err != nil {
		return err
	}
	services := object{}
	for _, name := range append(world.Services(), world.SimulatorName) {
		environment := object{}
		for _, v := range kill.Environment(name, farEndURL, "/scripts") {
			key, value, _ := strings.Cut(v, "=")
			environment[key] = value
		}
		services[name] = object{"environment": environment}
	}
	services[subject.AgentRunner].(object)["environment"].(object)["AGENT_RUNNER_TITLE_MODEL"] = "off"
	executor := services[subject.ToolExecutor].(object)
	executor["volumes"] = []string{r.root + "/bin/tool-executor-farends:/service:ro"}
	executor["extra_hosts"] = []string{"host.docker.internal:host-gateway"}
	simulator := services[world.SimulatorName].(object)
	simulator["volumes"] = []string{scripts + ":/scripts:ro"}
	simulator["networks"] = object{"inside": object{"ipv4_address": simulatorAddress}}
	services[world.PostgresName] = object{"networks": object{"inside": object{"ipv4_address": postgresAddress}}}
	b, err := json.MarshalIndent(object{
		"services": services,
		"networks": object{"inside": object{"ipam": object{"config": []object{{"subnet": subnet, "ip_range": upperHalf}}}}},
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(r.file("override.json"), b, 0o644)
}
