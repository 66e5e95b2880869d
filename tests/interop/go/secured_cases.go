package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"time"
)

const (
	records = 3
	bound   = 20 * time.Second
	stay    = 7 * time.Second
	pause   = 250 * time.Millisecond
)

// answerCases does the work of each case of test_secured_clients.py on stdin, and prints its name and its outcome.
func answerCases(work func(asked map[string]string) error) {
	asked := map[string]string{}
	answer := func() {
		if len(asked) == 0 {
			return
		}
		outcome := "ok"
		if err := work(asked); err != nil {
			outcome = strings.Join(strings.Fields(err.Error()), " ")
		}
		fmt.Printf("%s: %s\n", asked["case"], outcome)
		asked = map[string]string{}
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if key, value, found := strings.Cut(lines.Text(), "="); found {
			asked[key] = value
		} else {
			answer()
		}
	}
	answer()
}

// tlsOf returns the configuration of TLS, or nil where the case has none.
func tlsOf(asked map[string]string) (*tls.Config, error) {
	if asked["cafile"] == "" {
		return nil, nil
	}
	authority, err := os.ReadFile(asked["cafile"])
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(authority)
	if asked["certfile"] != "" {
		certificate, err := tls.LoadX509KeyPair(asked["certfile"], asked["keyfile"])
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}
