package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// serviceAccount is where Kubernetes puts a pod's token.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

const (
	maxSecret      = 4 << 20 // of an answer; a Secret has up to 1 MiB
	secretAttempts = 5       // when another process changes it at the same time
)

// kubernetes is the little of the Kubernetes API that keygen needs, from inside of a pod.
type kubernetes struct {
	client  *http.Client
	secrets string // URL of the namespace's Secrets
	token   string
}

// inCluster returns the API that a pod's files and environment name.
func inCluster(dir string, environ []string) (*kubernetes, error) {
	var host, port string
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		switch name {
		case "KUBERNETES_SERVICE_HOST":
			host = value
		case "KUBERNETES_SERVICE_PORT":
			port = value
		}
	}
	token, err := os.ReadFile(filepath.Join(dir, "token"))
	if err != nil || host == "" || port == "" {
		return nil, errors.Join(errors.New("--kubernetes-secret works in a pod of a cluster, with the token of a ServiceAccount that may get, create and patch the Secret"), err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	namespace, err := os.ReadFile(filepath.Join(dir, "namespace"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s has no certificate", filepath.Join(dir, "ca.crt"))
	}
	return &kubernetes{
		client: &http.Client{
			Timeout:   20 * time.Second,
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true},
		},
		secrets: "https://" + net.JoinHostPort(host, port) + "/api/v1/namespaces/" + url.PathEscape(strings.TrimSpace(string(namespace))) + "/secrets",
		token:   strings.TrimSpace(string(token)),
	}, nil
}

// secret is a Secret of the API, as far as it is used.
type secret struct {
	APIVersion string            `json:"apiVersion,omitempty"`
	Kind       string            `json:"kind,omitempty"`
	Metadata   secretMetadata    `json:"metadata"`
	Type       string            `json:"type,omitempty"`
	Data       map[string][]byte `json:"data"`
}

type secretMetadata struct {
	Name            string `json:"name,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

// fillSecret calls fill with the values of a Secret, and stores what fill adds; fill changes no
// value. A missing Secret is created whole. It returns the number of values that were added.
func (k *kubernetes) fillSecret(ctx context.Context, name string, fill func(map[string]string) error) (int, error) {
	for range secretAttempts {
		var s secret
		status, err := k.do(ctx, http.MethodGet, name, nil, &s)
		if err != nil && status != http.StatusNotFound {
			return 0, err
		}
		exists := err == nil
		values := make(map[string]string, len(s.Data))
		for key, v := range s.Data {
			values[key] = string(v)
		}
		before := maps.Clone(values)
		if err := fill(values); err != nil {
			return 0, err
		}
		added := map[string][]byte{}
		for key, v := range values {
			if before[key] == "" {
				added[key] = []byte(v)
			}
		}
		switch {
		case len(added) == 0:
			return 0, nil
		case exists:
			// The version makes this fail if another process has changed the Secret meanwhile.
			status, err = k.do(ctx, http.MethodPatch, name, secret{Metadata: secretMetadata{ResourceVersion: s.Metadata.ResourceVersion}, Data: added}, nil)
		default:
			status, err = k.do(ctx, http.MethodPost, "", secret{APIVersion: "v1", Kind: "Secret", Type: "Opaque", Metadata: secretMetadata{Name: name}, Data: added}, nil)
		}
		if err == nil {
			return len(added), nil
		}
		if status != http.StatusConflict {
			return 0, err
		}
	}
	return 0, errors.New("other processes keep changing it")
}

// do makes a request about a Secret. The error has what the API says, and no value of the Secret.
func (k *kubernetes) do(ctx context.Context, method, name string, body, into any) (int, error) {
	var send io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return 0, err
		}
		send = bytes.NewReader(b)
	}
	at := k.secrets
	if name != "" {
		at += "/" + url.PathEscape(name)
	}
	req, err := http.NewRequestWithContext(ctx, method, at, send)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+k.token)
	req.Header.Set("Accept", "application/json")
	switch method {
	case http.MethodPatch:
		req.Header.Set("Content-Type", "application/merge-patch+json")
	case http.MethodPost:
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := k.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxSecret))
	if err != nil {
		return res.StatusCode, err
	}
	if res.StatusCode >= http.StatusMultipleChoices {
		var status struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(text, &status) // a proxy's answer is not JSON
		return res.StatusCode, fmt.Errorf("the Kubernetes API answers %s %s: %s", method, res.Status, status.Message)
	}
	if into == nil {
		return res.StatusCode, nil
	}
	return res.StatusCode, json.Unmarshal(text, into)
}
