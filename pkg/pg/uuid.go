package pg

import (
	"encoding"
	"fmt"
	"reflect"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// registerUUIDs makes a connection send and scan UUIDs, and the ids of pkg/id, in binary. By
// default pgx goes through database/sql: it prints each id, tries the text, creates an error,
// and parses it again, which took a tenth of a runner's time.
func registerUUIDs(m *pgtype.Map) {
	one := &pgtype.Type{Name: "uuid", OID: pgtype.UUIDOID, Codec: uuidCodec{}}
	m.RegisterType(one)
	m.RegisterType(&pgtype.Type{Name: "_uuid", OID: pgtype.UUIDArrayOID, Codec: &pgtype.ArrayCodec{ElementType: one}})
}

// uuidCodec is pgx's codec except for our types in binary format.
type uuidCodec struct{ pgtype.UUIDCodec }

// bare is the underlying type of all types of pkg/id.
type bare = struct{ uuid.UUID }

// isUUID reports whether a type is a uuid.UUID or an id of pkg/id.
func isUUID(t reflect.Type) bool {
	return t == reflect.TypeFor[uuid.UUID]() || t.ConvertibleTo(reflect.TypeFor[bare]())
}

// PlanEncode implements pgtype.Codec.
func (c uuidCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if format == pgtype.BinaryFormatCode && value != nil && isUUID(reflect.TypeOf(value)) {
		return encodeUUID{}
	}
	return c.UUIDCodec.PlanEncode(m, oid, format, value)
}

// PlanScan implements pgtype.Codec.
func (c uuidCodec) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if t := reflect.TypeOf(target); format == pgtype.BinaryFormatCode && t.Kind() == reflect.Pointer && isUUID(t.Elem()) {
		return scanUUID{}
	}
	return c.UUIDCodec.PlanScan(m, oid, format, target)
}

type encodeUUID struct{}

// Encode implements pgtype.EncodePlan.
func (encodeUUID) Encode(value any, buf []byte) ([]byte, error) {
	v, ok := value.(encoding.BinaryMarshaler) // uuid.UUID, which all ids embed, is one
	if !ok {
		return nil, fmt.Errorf("encode %T as a uuid", value)
	}
	b, err := v.MarshalBinary()
	if err != nil {
		return nil, fmt.Errorf("encode a uuid: %w", err)
	}
	return append(buf, b...), nil
}

type scanUUID struct{}

// Scan implements pgtype.ScanPlan. NULL leaves the target unchanged, as uuid.UUID.Scan does.
func (scanUUID) Scan(src []byte, target any) error {
	if src == nil {
		return nil
	}
	v, ok := target.(encoding.BinaryUnmarshaler)
	if !ok {
		return fmt.Errorf("read a uuid into %T", target)
	}
	if err := v.UnmarshalBinary(src); err != nil {
		return fmt.Errorf("read a uuid: %w", err)
	}
	return nil
}
