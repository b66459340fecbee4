package credentialbroker

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/credential-broker/internal/pool"
)

// Settings are the rules by which a pool's accounts are chosen. Their JSON names are the
// names of everything: of what is stored, of the message's fields, and of what operators set.
type Settings = pool.Settings

// settingsMessage returns settings as a message, whose fields have their names.
func settingsMessage(s Settings) *credentialv1.PoolSettings {
	m := &credentialv1.PoolSettings{}
	text, err := json.Marshal(s)
	if err == nil {
		err = protojson.Unmarshal(text, m)
	}
	if err != nil {
		panic(fmt.Sprintf("settings as a message: %v", err)) // a setting without a field: a test would have met it
	}
	return m
}

// settingValues returns the settings of a message that are present, by their names.
func settingValues(m *credentialv1.PoolSettings) map[string]any {
	values := map[string]any{}
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		values[string(f.Name())] = v.Interface()
		return true
	})
	return values
}
